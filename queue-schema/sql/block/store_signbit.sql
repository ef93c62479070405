-- Only for the version that was embedded: a vector of an older text is dropped (B32). One statement for a whole settlement.
update blocks b
   set embedding = v.vector, embedding_sign = v.signs::bit varying, embedding_model = v.model, embedding_dims = v.dims, embedded_at = now()
  from unnest($1::bigint[], $2::int[], $3::text[], $4::int[], $5::bytea[], $6::text[]) as v(id, version, model, dims, vector, signs)
 where b.id = v.id and b.version = v.version
