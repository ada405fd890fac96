-- How many visitors go from seeing a product to an order: each step after the one before, all within a day.
with recursive
steps as (
    from (values (1, 'Product Viewed'), (2, 'Product Added'), (3, 'Checkout Started'), (4, 'Order Completed'))
        as steps(step, event)
),
once as (  -- webhooks are delivered at least once: count each message once
    from events qualify row_number() over (partition by messageId order by receivedAt) = 1
),
reached as (
    select 1 as step, anonymousId, min(timestamp) as began, min(timestamp) as seen
    from once where event = 'Product Viewed' group by anonymousId
    union all
    select steps.step, anonymousId, began, min(timestamp) as seen
    from reached join steps on steps.step = reached.step + 1 join once using (anonymousId, event)
    where timestamp between seen and began + interval 1 day
    group by all
),
visitors as (
    select anonymousId, any_value(source) as source from once where type = 'page' group by all
)
select event, count(*) as visitors,
       round(100 * count(*) / first(count(*)) over (order by step), 1) as percent,
       count(*) filter (source = 'newsletter') as by_newsletter,
       round(median(epoch(seen - began)) / 60, 1) as minutes
from reached join steps using (step) join visitors using (anonymousId)
group by step, event order by step
