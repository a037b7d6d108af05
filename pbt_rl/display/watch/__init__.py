"""`pbt-rl watch`: a page that follows a run, from its files alone.

    journal.jsonl -> reader.Reader -> state.state: JSON -> server -> page.html, page.js, page.css in a browser

Nothing is written, no process of the run knows of it, and a run that is over is shown the same way.
"""
