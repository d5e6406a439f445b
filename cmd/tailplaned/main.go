// Command tailplaned is Tailplane's server. Each of its roles runs with a separate ServiceAccount and has only that role's rights.
package main

import (
	"os"

	"github.com/tailplane/tailplane/internal/server"
)

func main() { os.Exit(server.Main()) }
