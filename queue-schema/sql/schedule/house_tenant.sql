select min(id) from tenants
