module github.com/tailplane/tailplane/testbed

go 1.26.6

require github.com/tailplane/tailplane v0.0.0

replace github.com/tailplane/tailplane => ../
