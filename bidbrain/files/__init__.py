"""Files of any room: lines that outlive their writer, files that appear when they are whole, YAML without doubles."""
