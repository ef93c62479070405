select blob_key from documents where id = $2 and tenant_id = $1
union all
select image_key from pages where document_id = $2 and tenant_id = $1 and image_key is not null
