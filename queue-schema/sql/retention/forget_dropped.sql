delete from dropped_blobs where key = any ($1)
