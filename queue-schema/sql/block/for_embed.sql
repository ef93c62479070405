select b.id, b.content from unnest($1::bigint[], $2::int[]) as w(id, version) join blocks b on b.id = w.id and b.version = w.version
