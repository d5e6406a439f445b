package testenv

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// Relay is a `tailplaned relay` process with a pod's environment and account, at its own loopback address.
type Relay struct {
	*Process
	RelayOptions
}

// RelayOptions describe the pod of a Relay. Fields are required unless their comment says otherwise.
type RelayOptions struct {
	Namespace, Account string
	Pod, UID           string
	IP                 string   // for example 127.77.0.1
	Ingress            bool     // optional
	Env                []string // optional; they override earlier ones
	Profiles           bool     // optional: with --pprof, at IP:9001
}

// StartRelay starts a relay with its files in dir. It returns before the relay is ready.
func StartRelay(ctx context.Context, dir string, c *kubetest.Cluster, o RelayOptions) (*Relay, error) {
	program, err := buildcache.Lookup("tailplaned")
	if err != nil {
		return nil, err
	}
	state := filepath.Join(dir, "state") // an emptyDir: new for each pod
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	kubeconfig, err := c.ServiceAccountKubeconfig(ctx, o.Namespace, o.Account, dir)
	if err != nil {
		return nil, err
	}
	env := append(tailnettest.ChildEnv(), "HOME="+dir, "TMPDIR="+os.TempDir(), "POD_NAME="+o.Pod, "POD_UID="+o.UID, "POD_IP="+o.IP, "POD_IPS="+o.IP,
		"TS_KUBE_SECRET="+o.Pod, "TS_STATE=kube:"+o.Pod, "TS_USERSPACE=true", "TS_AUTH_ONCE=true", "TS_LOCAL_ADDR_PORT="+o.IP+":9002",
		"TS_DEBUG_ADDR_PORT=127.0.0.1:9001", "TS_ENABLE_HEALTH_CHECK=true", "TS_ENABLE_METRICS=true")
	if o.Ingress {
		env = append(env, "TS_EXPERIMENTAL_CERT_SHARE=true", "TS_SERVE_CONFIG=/etc/proxies/serve-config")
	} else {
		env = append(env, "TS_EGRESS_PROXIES_CONFIG_PATH=/etc/proxies")
	}
	args := []string{"relay", "--kubeconfig", kubeconfig, "--state-dir", state, "--log-level", "debug"}
	if o.Profiles {
		args, env = append(args, "--pprof"), append(env, "TS_DEBUG_ADDR_PORT="+o.IP+":9001")
	}
	p, err := startProcess(dir, append(env, o.Env...), append([]string{program}, args...)...)
	if err != nil {
		return nil, err
	}
	return &Relay{p, o}, nil
}

// Ask requests path from the health port and returns the status code, the body and the header.
func (r *Relay) Ask(ctx context.Context, path string) (int, string, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.IP+":9002"+path, nil)
	if err != nil {
		return 0, "", nil, err
	}
	t := &http.Transport{DisableKeepAlives: true}
	res, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return 0, "", nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return res.StatusCode, string(b), res.Header, err
}

// AwaitReady waits until path on the health port returns 200.
func (r *Relay) AwaitReady(ctx context.Context, path string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last := ""
	for {
		status, says, _, err := r.Ask(ctx, path)
		if err == nil && status == http.StatusOK {
			return nil
		}
		last = fmt.Sprint(status, " ", says, err)
		select {
		case <-tick.C:
		case <-r.Done():
			return fmt.Errorf("the relay ended: %s", tail(r.Output()))
		case <-ctx.Done():
			return fmt.Errorf("%s of the relay: %s: %s", path, last, tail(r.Output()))
		}
	}
}
