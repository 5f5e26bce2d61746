"""The Batch API behind its routes: files and batches that survive a crash, and the lines of batches as background
requests. Knows neither HTTP nor engines: a `Dispatch` answers a line, a `Capacity` says how many may run.

    records        files, batches, lines and results, as the other modules exchange them
    tables, store  the same in a database: every change of a batch is one transaction
    protocol       what a store of files and batches must provide
    input_file     checks the lines of an input file before any of them runs
    limiter        how many lines run at once: the capacity that interactive requests leave free
    job            one batch: validate, run lines, finalize
    output_files   writes the output and error file
    runner         the jobs of unfinished batches
    data_folder    a store for one server: lock, SQLite file, and contents of files on disk (`file_area`)
    shared_data    a store that servers share in one database: leases say which server works on which batch (`leases`),
                   contents of files are chunks (`shared_contents`)
    metrics        counts for Prometheus
    manager        the package's interface, for the routes and the server

    validating ──► in_progress ──► finalizing ──► completed | expired
        └► failed      └► cancelling ──────────► cancelled

A line's result is stored in the transaction that counts it, and a file is written from stored results: whenever the
server is killed, the next one or another resumes, and each line is in the output or error file once.
"""
