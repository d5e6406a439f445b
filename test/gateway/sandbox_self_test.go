//go:build linux

package gateway

import (
	"net"
	"os"
	"testing"
)

// The namespaces have the properties on which the other tests rely.
func TestNamespaces(t *testing.T) {
	needsNamespaces(t)
	if err := os.WriteFile("/certs/probe", nil, 0o600); err != nil {
		t.Error(err)
	}
	ln, err := net.Listen("tcp", "10.244.9.9:80")
	if err != nil {
		t.Fatal("a pod's address:", err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if interfaces, err := net.Interfaces(); err != nil || len(interfaces) != 1 {
		t.Errorf("interfaces: %v, %v", interfaces, err)
	}
}
