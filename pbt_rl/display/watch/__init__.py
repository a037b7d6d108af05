"""`pbt-rl watch`: a web page that follows a run, from its files alone.

    journal.jsonl -> reader.Reader -> state.state: JSON -> server -> page.html, page.js, page.css in a browser

Writes nothing and does not contact the run's processes. A finished run is shown in the same way.
"""
