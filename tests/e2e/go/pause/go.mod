module hvdkit/e2e/pause

go 1.26
