"""Files of any room: lines that outlive their writer, whole files, names that are on disk, YAML without doubles, and a
place for compiled code."""
