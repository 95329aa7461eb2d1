"""The page of a run: see it learn, correct it, teach it; metrics beside it. `deco-run --page` opens it.

    listener.py   starts the server and hears what happens
    board.py      what the page shows, as one record that is told in JSON
    pictures.py   the live frame, the small pictures, the condensed buffer
    access.py     who may see it, and who may change something
    _app.py       the addresses; Starlette
    _metrics.py   /metrics; the Prometheus client
    static/       HTML, CSS and JavaScript as they are sent

Modules that begin with _ need the extra [page].
"""
