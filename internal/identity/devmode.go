package identity

import (
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/tailplane/tailplane/internal/access"
)

// Dev is the mode for a developer's machine. Every caller gets the login Login.
type Dev struct {
	Login access.Login
	// LookupEnv is [os.LookupEnv]. It is used to refuse this mode inside a cluster.
	LookupEnv func(string) (string, bool)
}

// inCluster is an environment variable that Kubernetes sets in every pod.
const inCluster = "KUBERNETES_SERVICE_HOST"

// Check returns an error if a setting is missing or invalid for a listener at the address.
func (m Dev) Check(at net.Addr) error {
	if m.LookupEnv == nil {
		return errors.New("identity dev: LookupEnv is missing")
	}
	if _, in := m.LookupEnv(inCluster); in {
		return fmt.Errorf("identity dev: %s is set: this mode is not allowed in a cluster, because it does not identify callers", inCluster)
	}
	if !loopback(at) {
		return fmt.Errorf("identity dev: %v is not a loopback address", at)
	}
	if _, err := parseLogin(string(m.Login)); err != nil {
		return fmt.Errorf("identity dev: %w", err)
	}
	return nil
}

// Identifier returns the fixed login for requests from the local machine.
func (m Dev) Identifier(at net.Addr) (Identifier, error) {
	if err := m.Check(at); err != nil {
		return nil, err
	}
	return withoutHeaders(func(r *http.Request) (access.Caller, error) {
		if _, _, err := loopbackEndpoints(r); err != nil {
			return access.Caller{}, err
		}
		return access.Caller{Login: m.Login, DisplayName: string(m.Login), Via: access.ViaDev}, nil
	}), nil
}
