package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/tailplane/tailplane/internal/accessproxy"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/tailnet"
)

// accessClient is the access proxy's client of the cluster's access servers. It implements accessproxy.AccessServer.
type accessClient struct {
	servers func() []string // base URLs
	http    *http.Client
}

// newAccessClient returns the client for the settings, or nil if they name no server.
func newAccessClient(set settings.File, node *tailnet.Node) (accessproxy.AccessServer, error) {
	a := set.Proxy.Access
	if len(a.Servers) == 0 {
		return nil, nil
	}
	key, err := httpapi.ParsePublicKey(a.Key)
	if err != nil {
		return nil, fmt.Errorf("proxy.access.key: %w", err)
	}
	dial := &http.Transport{DialContext: node.DialHost, TLSHandshakeTimeout: 5 * time.Second, IdleConnTimeout: time.Minute, DisableCompression: true}
	return &accessClient{
		servers: func() (all []string) {
			self := ""
			if names := node.Names(); len(names) > 0 {
				self = names[0]
			}
			for _, s := range a.Servers {
				if at := a.URL(s, self, set.Tailnet.Port, set.Tailnet.InsecureHTTP); at != "" {
					all = append(all, at)
				}
			}
			return all
		},
		http: &http.Client{Transport: provenTransport{dial, key}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}, nil
}

// BeginOnUse implements accessproxy.AccessServer.
func (c *accessClient) BeginOnUse(ctx context.Context, device string) error {
	return c.call(func(to httpapi.Client) error {
		_, err := signin.FirstUse.Call(ctx, to, signin.FirstUseRequest{Device: device})
		if problem.CodeOf(err) == problem.NotReady { // 202: the operator provisions it
			err = nil
		}
		return err
	})
}

// ReportUsage implements accessproxy.AccessServer.
func (c *accessClient) ReportUsage(ctx context.Context, names []string) error {
	return c.call(func(to httpapi.Client) error {
		_, err := signin.ReportUsage.Call(ctx, to, signin.UsageReport{Signins: names})
		return err
	})
}

// call calls the first access server that answers. A refusal is an answer.
func (c *accessClient) call(fn func(httpapi.Client) error) error {
	failed := errors.New("the node of this proxy is not connected to its tailnet")
	for _, base := range c.servers() {
		err := fn(httpapi.Client{HTTP: c.http, Base: base})
		if _, refused := errors.AsType[*problem.Error](err); err == nil || refused {
			return err
		}
		failed = err
	}
	return failed
}

// maxProven is the maximum size of a response of the access server in bytes.
const maxProven = 64 << 10

// provenTransport accepts only responses that the holder of the cluster's key has signed.
type provenTransport struct {
	base http.RoundTripper
	key  httpapi.PublicKey
}

// RoundTrip implements [http.RoundTripper].
func (t provenTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r, nonce := r.Clone(r.Context()), httpapi.NewNonce()
	r.Header.Set(httpapi.NonceHeader, nonce)
	res, err := t.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxProven+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the response: %w", err)
	case len(body) > maxProven:
		return nil, fmt.Errorf("the response is larger than %d bytes", maxProven)
	}
	if err := t.key.Check(nonce, cmp.Or(r.Host, r.URL.Host), body, res.Header.Get(httpapi.ProofHeader)); err != nil {
		return nil, fmt.Errorf("%s is not an access server of the cluster in proxy.access.key: %w", r.URL.Host, err)
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	return res, nil
}
