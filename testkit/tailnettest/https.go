package tailnettest

import (
	"sync"

	"tailscale.com/envknob"

	"github.com/tailplane/tailplane/testkit/tailnettest/acmetest"
)

const acmeVariable = "TS_DEBUG_ACME_DIRECTORY_URL"

// processACME is the certificate authority of all tailnets of this process. It is package state, because Tailscale's
// client finds it through an environment variable of the process.
var processACME struct {
	sync.Mutex
	users int
	ca    *acmetest.Authority
}

// Certificates reports whether the tailnet can give its nodes certificates.
func (n *Net) Certificates() bool { return !n.headscale }

// EnableHTTPS enables certificates on the tailnet, so that tsnet's ListenTLS and Funnel work. It returns the root
// (PEM) that clients must trust. Certificates come from an ACME server on loopback, by DNS-01 through control's
// set-dns. Call it before the nodes request certificates. Other processes need HTTPSEnv.
func (n *Net) EnableHTTPS() (rootsPEM []byte) {
	if n.headscale {
		panic("tailnettest: Headscale gives no certificates")
	}
	c := n.control
	c.mu.Lock()
	ca := c.acme
	c.mu.Unlock()
	if ca == nil {
		var err error
		if ca, err = acquireACME(); err != nil {
			// The caller cannot continue: there is no free port on loopback, or no entropy.
			panic("tailnettest: certificate authority: " + err.Error())
		}
		n.onClose(releaseACME)
		c.mu.Lock()
		c.acme = ca
		c.bumpLocked()
		c.mu.Unlock()
	}
	return ca.RootPEM()
}

// HTTPSEnv enables HTTPS and returns the environment variables ("NAME=value") that another process needs to get
// certificates for its nodes. There are none on a tailnet without certificates.
func (n *Net) HTTPSEnv() []string {
	if !n.Certificates() {
		return nil
	}
	n.EnableHTTPS()
	return []string{acmeVariable + "=" + n.control.acmeURL()}
}

// Issued returns the number of certificates for a name that the authority has signed. All tailnets of this process
// share the authority. HTTPS must be enabled.
func (n *Net) Issued(name string) int { return n.control.authority().Issued(name) }

func (c *control) acmeURL() string { return c.authority().DirectoryURL() }

func (c *control) authority() *acmetest.Authority {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.acme
}

func acquireACME() (*acmetest.Authority, error) {
	processACME.Lock()
	defer processACME.Unlock()
	if processACME.users == 0 {
		ca, err := acmetest.Start()
		if err != nil {
			return nil, err
		}
		processACME.ca = ca
		envknob.Setenv(acmeVariable, ca.DirectoryURL())
	}
	processACME.users++
	return processACME.ca, nil
}

func releaseACME() {
	processACME.Lock()
	defer processACME.Unlock()
	if processACME.users--; processACME.users == 0 {
		envknob.Setenv(acmeVariable, "")
		processACME.ca.Close()
		processACME.ca = nil
	}
}
