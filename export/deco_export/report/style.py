"""How the report looks: light and dark, on a phone and on paper, without anything from elsewhere."""

STYLE = """
:root{color-scheme:light dark;--ink:#1d2329;--soft:#5a6570;--paper:#fff;--card:#f4f6f8;--line:#d8dee4;--blue:#2f6fb5;
--pale:#a9c8e8;--red:#b3382c}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ec;--soft:#9aa5b0;--paper:#14181c;--card:#1e242a;--line:#38414a;
--blue:#6aa8e6;--pale:#2d527a;--red:#f0897c}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1rem 1.2rem 4rem;font:1rem/1.5 system-ui,sans-serif;color:var(--ink);
background:var(--paper);overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.5rem 0 0}h2{font-size:1.2rem;margin:2.2rem 0 .4rem}p{margin:.5rem 0;max-width:46rem}
.soft,small{color:var(--soft);font-size:.88rem}
.verdicts{background:var(--card);border-left:4px solid var(--blue);padding:.7rem 1rem .7rem 2rem;margin:1rem 0;
border-radius:4px}.verdicts li{margin:.3rem 0}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem}
th,td{text-align:left;padding:.25rem .7rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:middle}
th{font-weight:600;overflow-wrap:normal}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.classes{width:100%}.classes td:nth-child(2){min-width:9.5rem}
.classes td.n{white-space:nowrap}.classes th,.classes td{overflow-wrap:normal}
.classes td:first-child,.classes th:first-child{overflow-wrap:anywhere;min-width:4.5rem}
.bar{display:block;width:100%;min-width:5rem;height:.7rem}.rail{fill:var(--line)}.value{fill:var(--pale)}
.range{stroke:var(--ink);stroke-width:1.5;fill:none;vector-effect:non-scaling-stroke}
.heat td,.heat th{padding:.15rem .35rem;border:1px solid var(--line);text-align:center;min-width:2rem}
.heat th[scope=row]{text-align:left;max-width:12rem;min-width:5rem}
.heat td{background:color-mix(in srgb,var(--red) calc(var(--s)*60%),transparent)}
.heat td.ok{background:color-mix(in srgb,var(--blue) calc(var(--s)*45%),transparent)}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(8.5rem,1fr));gap:.8rem;padding:0;list-style:none}
.cards.two{grid-template-columns:repeat(auto-fill,minmax(15rem,1fr))}
.cards>li{background:var(--card);border-radius:6px;padding:.6rem;font-size:.85rem;line-height:1.35}
.two .pair{display:grid;grid-template-columns:1fr 1fr;gap:.6rem}
.cards img{display:block;width:96px;height:96px;object-fit:contain;margin-bottom:.4rem;border-radius:3px}
img.small{image-rendering:pixelated}.clear{color:var(--red);font-weight:600}
.curve{width:100%;max-width:40rem;height:auto}.curve text{fill:var(--soft);font:13px system-ui,sans-serif}
.grid{stroke:var(--line)}.line{stroke:var(--blue);stroke-width:2;fill:none}.dot{fill:var(--blue)}
.cast{stroke:var(--red);stroke-width:7;stroke-linecap:round}
summary{cursor:pointer;color:var(--blue);margin:.4rem 0}
@media print{body{max-width:none}.cards>li{break-inside:avoid}}
"""
