//go:build unix

package dashboard_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/accessproxy/connections"
	"github.com/tailplane/tailplane/internal/plane"
)

// openStreams are the streams of an access proxy of this test.
type openStreams struct {
	mu   sync.Mutex
	all  []connections.Stream
	cuts []string
}

// proxies returns a proxy with three open streams, and one that does not answer.
func (h *env) proxies() []plane.AccessProxy {
	now := time.Now()
	o := &h.streams
	o.all = []connections.Stream{
		{ID: "stream-1", Kind: "watch", Login: "alice@acme.dev", Tailnet: "acme.dev", Device: "alice-laptop", Signin: "s-0000", Resource: "pods", Namespace: "shop", Since: now.Add(-3 * time.Hour), Bytes: 812344},
		{ID: "stream-2", Kind: "exec", Login: "frank@acme.dev", Tailnet: "acme.dev", Device: "frank-nuc", Session: "deploy", Signin: "s-0009", Resource: "pods/exec", Namespace: "shop", Name: "web-0",
			Since: now.Add(-4 * time.Minute), Bytes: 2048, Recording: "rec-7f3a"},
		{ID: "stream-3", Kind: "portforward", Login: "erin@acme.dev", Tailnet: "acme.dev", Device: "erin-<b>desk</b>", Signin: "s-0005", Resource: "pods/portforward", Namespace: "shop",
			Name: "database-with-a-long-name-0", Since: now.Add(-20 * time.Second), Bytes: 99},
	}
	down := func(context.Context, connections.ListRequest) (connections.List, error) {
		return connections.List{}, errors.New("connection refused")
	}
	return []plane.AccessProxy{
		{Name: "prod-eu-api.tail1234.ts.net",
			List: func(_ context.Context, req connections.ListRequest) (connections.List, error) {
				o.mu.Lock()
				defer o.mu.Unlock()
				return connections.List{Cluster: "prod-eu", Streams: slices.DeleteFunc(slices.Clone(o.all), func(s connections.Stream) bool {
					return req.ID != "" && string(req.ID) != s.ID || req.Login != "" && string(req.Login) != s.Login
				})}, nil
			},
			Cut: func(_ context.Context, req connections.CutRequest) (connections.Cut, error) {
				o.mu.Lock()
				defer o.mu.Unlock()
				o.all = slices.DeleteFunc(o.all, func(s connections.Stream) bool { return s.ID == req.ID })
				o.cuts = append(o.cuts, req.ID+" for "+req.For+": "+req.Reason)
				return connections.Cut{}, nil
			}},
		{Name: "prod-us-api.tail1234.ts.net", List: down},
	}
}
