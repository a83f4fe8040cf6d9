"""Files of data: where they lie, a bounded cache for those that are far away, and formats that are read by item."""
