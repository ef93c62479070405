select class, model, vector from answers where job_id = $1
