"""AgileML: elastic parameter-server training over reliable and transient machines."""
