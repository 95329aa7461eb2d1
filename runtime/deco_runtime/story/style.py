"""The style of the page: light and dark, wide and narrow, without anything from elsewhere."""

STYLE = """
:root { color-scheme: light dark; --back: #fbfbf9; --card: #fff; --ink: #1d2126; --soft: #5c6570; --line: #dcdfe3;
  --0: #2f6fb5; --1: #d9772b; --2: #3b9460; --3: #a94f9b; --4: #b8963a; --5: #4aa5b8; --6: #c24a52; --7: #8a8f96; }
@media (prefers-color-scheme: dark) { :root { --back: #14171a; --card: #1c2024; --ink: #e6e8ea; --soft: #9aa4ae;
  --line: #343a41; --0: #6aa5e6; --1: #f0a060; --2: #6cc491; --3: #d389c6; --4: #dcc06a; --5: #7ccfe0; --6: #ee8189;
  --7: #8f969e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: .5rem 0 0; } h2 { font-size: 1.15rem; margin: 0 0 .5rem; }
p { margin: .4rem 0; } .soft, td.soft { color: var(--soft); } .warn { border-left: 4px solid var(--1); }
section, .tiles > div { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: 1rem; }
section { margin: 1rem 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 1rem 0; }
.tiles > div { padding: .75rem; } .tiles b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: .85rem; }
figure { margin: .75rem 0; } .plot { display: flex; height: 12rem; } .plot svg { flex: 1; min-width: 0; height: 100%; }
.y { display: flex; flex-direction: column; justify-content: space-between; width: 3.6rem; padding-right: .4rem;
  text-align: right; font-size: .75rem; color: var(--soft); }
.x { display: flex; justify-content: space-between; gap: 1rem; padding-left: 3.6rem; font-size: .75rem;
  color: var(--soft); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: 0 0 .4rem; padding: 0; list-style: none;
  font-size: .85rem; } .legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em;
  border-radius: 2px; }
.grid { stroke: var(--line); vector-effect: non-scaling-stroke; }
polyline { fill: none; stroke-width: 2px; vector-effect: non-scaling-stroke; stroke-linejoin: round; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; } td.n, th.n { text-align: right; white-space: nowrap; }
time { white-space: nowrap; } td { overflow-wrap: break-word; }
details { margin-top: .6rem; } summary { cursor: pointer; color: var(--soft); }
""" + "\n".join(
    f".c{i} {{ fill: var(--{i}); background: var(--{i}); }} .s{i} {{ stroke: var(--{i}); }}" for i in range(8)
)
