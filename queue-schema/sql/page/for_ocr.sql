select p.id, p.document_id, p.no, p.image_key from pages p where p.id = $1 and p.image_key is not null
