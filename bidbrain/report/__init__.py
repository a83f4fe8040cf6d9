"""Tables, plots and the page that puts them together."""
