package testenv

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/tailplane/tailplane/testkit/buildcache"
)

// Prometheus is a real Prometheus on loopback. It keeps its address and its data over a restart.
type Prometheus struct {
	*Process

	URL string

	dir, address string
}

// StartPrometheus starts a Prometheus in the directory dir that scrapes the targets in settings. It waits until
// Prometheus is ready. The admin API, reload and quit are enabled; the proxy in front of it must restrict the access
// to them.
func StartPrometheus(ctx context.Context, dir, settings string) (*Prometheus, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Prometheus{dir: dir, address: ln.Addr().String()}
	p.URL = "http://" + p.address
	ln.Close()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := p.Set(settings); err != nil {
		return nil, err
	}
	return p, p.Start(ctx)
}

// Set writes the settings. Prometheus reads them at a start or a reload.
func (p *Prometheus) Set(settings string) error {
	return os.WriteFile(filepath.Join(p.dir, "prometheus.yml"), []byte(settings), 0o600)
}

// Start starts Prometheus again after it ended, and waits until it is ready.
func (p *Prometheus) Start(ctx context.Context) (err error) {
	path, err := buildcache.Lookup("prometheus")
	if err != nil {
		return err
	}
	p.Process, err = startProcess(p.dir, os.Environ(), path, "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address="+p.address,
		"--web.enable-lifecycle", "--web.enable-admin-api")
	if err != nil {
		return err
	}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/-/ready", nil)
		if err != nil {
			return err
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-p.Done():
			return fmt.Errorf("prometheus ended: %s", tail(p.Output()))
		case <-ctx.Done():
			return fmt.Errorf("prometheus is not ready: %w: %s", ctx.Err(), tail(p.Output()))
		case <-time.After(50 * time.Millisecond):
		}
	}
}
