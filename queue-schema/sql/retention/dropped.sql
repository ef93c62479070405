-- Keys whose rows went, oldest first; one that is named again after all is not among them.
select k.key from dropped_blobs k
 where not exists (select from documents d where d.blob_key = k.key) and not exists (select from pages p where p.image_key = k.key)
 order by k.dropped_at limit $1
