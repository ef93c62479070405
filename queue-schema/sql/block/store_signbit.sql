-- Only for the version that was embedded: a vector of an older text is dropped (B32).
update blocks set embedding = $5, embedding_sign = $6::text::bit varying, embedding_model = $3, embedding_dims = $4, embedded_at = now() where id = $1 and version = $2
