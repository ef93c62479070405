select greatest(coalesce(d.level, 3), s.floor_level)::smallint from documents d join spaces s on s.id = d.space_id where d.id = $1
