"""The IceDB v3 log: object stores, format, fold, fence, commit, plans.

Start with ``docs/protocol.md``; then ``model`` (the values), ``fold`` (what they mean), ``fence`` (how a commit
stays alone), ``flush``, ``merge`` and ``vacuum`` (who writes what in which order).
"""
