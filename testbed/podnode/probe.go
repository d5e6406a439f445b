//go:build linux

package podnode

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// watch runs a probe periodically until ctx ends. It reports the first result and each change to change.
func (c *container) watch(ctx context.Context, kind string, p *corev1.Probe, change func(good bool)) {
	if retry.Sleep(ctx, time.Duration(p.InitialDelaySeconds)*time.Second) != nil {
		return
	}
	good, bad, told := int32(0), int32(0), ""
	for {
		err := c.probe(ctx, p.ProbeHandler, time.Duration(max(1, p.TimeoutSeconds))*time.Second)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			good, bad = good+1, 0
		} else {
			good, bad = 0, bad+1
			c.p.n.o.Log.Info("probe", "pod", c.p.key, "container", c.spec.Name, "probe", kind, "err", err)
		}
		switch {
		case good >= max(1, p.SuccessThreshold) && told != "good":
			told = "good"
			change(true)
		case bad >= max(1, p.FailureThreshold) && told != "bad":
			told = "bad"
			c.p.n.event(ctx, c.p.obj, corev1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s probe of %s failed: %v", kind, c.spec.Name, err))
			change(false)
		}
		if retry.Sleep(ctx, time.Duration(max(1, p.PeriodSeconds))*time.Second) != nil {
			return
		}
	}
}

func (c *container) probe(ctx context.Context, h corev1.ProbeHandler, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	switch {
	case h.Exec != nil:
		return c.command(ctx, h.Exec.Command)
	case h.HTTPGet != nil:
		return c.get(ctx, *h.HTTPGet)
	case h.TCPSocket != nil:
		port, err := c.port(h.TCPSocket.Port)
		if err != nil {
			return err
		}
		conn, err := c.p.dial(ctx, h.TCPSocket.Host, port)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	return errors.New("a probe of an unknown kind")
}

// get sends the HTTP request of a probe as a kubelet does: from the node to the pod's address, without a check of
// certificates.
func (c *container) get(ctx context.Context, g corev1.HTTPGetAction) error {
	port, err := c.port(g.Port)
	if err != nil {
		return err
	}
	host := g.Host
	if host == "" {
		host = c.p.ip
	}
	url := strings.ToLower(string(g.Scheme)) + "://" + net.JoinHostPort(host, strconv.Itoa(port)) + "/" + strings.TrimPrefix(g.Path, "/")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	for _, h := range g.HTTPHeaders {
		if strings.EqualFold(h.Name, "Host") {
			req.Host = h.Value
		}
		req.Header.Add(h.Name, h.Value)
	}
	t := &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.p.dial(ctx, g.Host, port) },
	}
	res, err := t.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode >= 400 {
		return fmt.Errorf("%s %s", g.Path, res.Status)
	}
	return nil
}

func (c *container) port(p intstr.IntOrString) (int, error) {
	if p.Type == intstr.Int {
		return p.IntValue(), nil
	}
	for _, x := range c.spec.Ports {
		if x.Name == p.StrVal {
			return int(x.ContainerPort), nil
		}
	}
	return 0, fmt.Errorf("no port is named %s", p.StrVal)
}

// wellbeing runs the probes: first the startup probe, then the liveness and readiness probes.
func (c *container) wellbeing(ctx context.Context, unwell chan<- string) {
	if p := c.spec.StartupProbe; p != nil {
		starting, started := context.WithCancel(ctx)
		ok := false
		c.watch(starting, "startup", p, func(good bool) {
			if ok = good; !good {
				unwell <- "failed its startup probe"
			}
			started()
		})
		started()
		if !ok {
			return
		}
	}
	c.change(func(s *corev1.ContainerStatus) {
		s.Started = new(true)
		s.Ready = c.spec.ReadinessProbe == nil
	})
	c.mu.Lock()
	select {
	case <-c.started:
	default:
		close(c.started)
	}
	c.mu.Unlock()
	var wg sync.WaitGroup
	defer wg.Wait()
	if p := c.spec.ReadinessProbe; p != nil {
		wg.Go(func() {
			c.watch(ctx, "readiness", p, func(good bool) { c.change(func(s *corev1.ContainerStatus) { s.Ready = good }) })
		})
	}
	if p := c.spec.LivenessProbe; p != nil {
		wg.Go(func() {
			living, dead := context.WithCancel(ctx)
			defer dead()
			c.watch(living, "liveness", p, func(good bool) {
				if !good {
					unwell <- "failed its liveness probe"
					dead()
				}
			})
		})
	}
}
