import type { Dashboard, DataQuery, Panel, RowPanel } from "@grafana/schema";
import type * as stat from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as table from "@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen";
import type * as text from "@grafana/schema/dist/esm/raw/composable/text/panelcfg/x/TextPanelCfg_types.gen";
import type * as lines from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

/** A type as JSON has it: a text instead of the name of an enumeration. */
type Json<T> = unknown extends T ? T
  : T extends string ? `${T}`
  : T extends (infer Each)[] ? Json<Each>[]
  : T extends object ? { [Name in keyof T]: Json<T[Name]> }
  : T;

/** A query of Prometheus; its type is in none of Grafana's packages. */
interface PromQuery extends DataQuery {
  datasource: { type: "prometheus"; uid: string };
  expr: string;
  format?: "table" | "time_series" | "heatmap";
  instant?: boolean;
  legendFormat?: string;
  range?: boolean;
}

/** Options that are left out have their default. */
interface PanelOf<Type extends string, Options, Custom = Record<string, never>>
  extends Omit<Panel, "options" | "fieldConfig" | "targets" | "type"> {
  type: Type;
  options?: Partial<Options>;
  fieldConfig: Omit<NonNullable<Panel["fieldConfig"]>, "defaults"> & {
    defaults: Omit<NonNullable<Panel["fieldConfig"]>["defaults"], "custom"> & { custom?: Partial<Custom> };
  };
  targets?: PromQuery[];
}

type OurPanel =
  | PanelOf<"stat", stat.Options>
  | PanelOf<"table", table.Options, table.FieldConfig>
  | PanelOf<"text", text.Options>
  | PanelOf<"timeseries", lines.Options, lines.FieldConfig>
  | RowPanel;

export type Board = Json<Omit<Dashboard, "panels"> & { panels: OurPanel[] }>;
