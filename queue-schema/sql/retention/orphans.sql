select k from unnest($1::text[]) as k
 where not exists (select from documents d where d.blob_key = k) and not exists (select from pages p where p.image_key = k)
