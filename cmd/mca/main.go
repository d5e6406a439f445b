// Command mca is a sidecar that serves the Kubernetes API to its pod. Applications reach it at a loopback
// address with a token that only this pod has. The adapter alone holds the credentials for the clusters.
package main

import "github.com/tailplane/tailplane/internal/multicluster/run"

// version is set by the linker in releases: -X main.version=v1.2.3
var version string

func main() { run.Main(version) }
