def run(a,b): pass
