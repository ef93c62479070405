//! `retention`: nothing in, nothing out; what it deletes and keeps is in `queue_schema::retention`.
