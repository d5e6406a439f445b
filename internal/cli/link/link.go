// Package link is the client for one access server. It sends requests, waits, and accepts no response that the cluster's key does not
// prove. It keeps law 1 for the client side: the proof identifies a server, not its name or certificate.
package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"time"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/reach"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// A Link is a client for one server, with its last response. It must not be used concurrently.
type Link struct {
	Base   string        // URL: scheme and host
	Limit  time.Duration // of the whole command, for messages
	Last   Exchange
	client door.Client

	Key    door.PublicKey     // must prove every response; zero: not yet known
	Listed bool               // the key is in the settings
	Source string             // the server that reported the key; "": this machine knows it
	Info   signin.ClusterInfo // of the server's cluster, once the server has proved its identity
	First  bool               // its key was not known before
	Denied *fault.Fault       // the server refused the request for its cluster; proved if the key is known
}

// An Exchange is the metadata of the last request and response.
type Exchange struct {
	Reached bool // a connection was established
	Status  int
	Header  http.Header
	nonce   string
	host    string       // as in the request
	body    bytes.Buffer // as far as it was read
}

// New returns a client for the server at base. limit is the time limit of the command, and agent is the User-Agent header. New opens no
// connection.
func New(base string, limit time.Duration, agent string) *Link {
	return newLink(base, limit, agent, reach.Transport(base))
}

// Named is [New] for a server whose address and key another server reported; source is that server. It connects only within the tailnet.
func Named(base string, key door.PublicKey, source string, limit time.Duration, agent string) *Link {
	l := newLink(base, limit, agent, reach.TailnetTransport())
	l.Key, l.Source = key, source
	return l
}

func newLink(base string, limit time.Duration, agent string, way http.RoundTripper) *Link {
	l := &Link{Base: base, Limit: limit}
	l.client = door.Client{Base: base, HTTP: &http.Client{
		Transport:     &observer{link: l, next: way, agent: agent},
		CheckRedirect: func(r *http.Request, _ []*http.Request) error { return redirected(r.URL.String()) },
	}}
	return l
}

// redirected is the target of a redirect. tka never follows one: otherwise the server that responds once could choose which server tka
// queries next.
type redirected string

func (r redirected) Error() string { return fmt.Sprintf("a redirect to %.200q", string(r)) }

// An observer records the responses of a link.
type observer struct {
	link  *Link
	next  http.RoundTripper
	agent string
}

func (o *observer) RoundTrip(r *http.Request) (*http.Response, error) {
	o.link.Last = Exchange{}
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { o.link.Last.Reached = true },
	})
	r = r.Clone(ctx)
	o.link.Last.nonce, o.link.Last.host = door.NewNonce(), r.URL.Host
	r.Header.Set("User-Agent", o.agent)
	r.Header.Set(door.NonceHeader, o.link.Last.nonce)
	res, err := o.next.RoundTrip(r)
	if err == nil {
		o.link.Last.Status, o.link.Last.Header = res.StatusCode, res.Header
		res.Body = tee{io.TeeReader(res.Body, &o.link.Last.body), res.Body}
	}
	return res, err
}

// A tee records a body while it is read. The reader must bound it.
type tee struct {
	io.Reader
	io.Closer
}

// Call sends a request for op to the server. Every error is a fault.
func Call[Req, Resp any](ctx context.Context, l *Link, op door.Op[Req, Resp], req Req) (Resp, error) {
	resp, err := op.Call(ctx, l.client, req)
	p, refused := errors.AsType[*problem.Error](err)
	if err != nil && !refused {
		return resp, l.Explain(ctx, err)
	}
	if !l.Key.IsZero() && l.proves(l.Key) != nil {
		if !refused || !unproved(p.Code) {
			var none Resp
			return none, l.impostor(door.PublicKey{})
		}
		p.Advice = append([]string{"This answer is without proof, so it may be somebody else's than the server's."}, p.Advice...)
	}
	if refused {
		return resp, l.Explain(ctx, err)
	}
	return resp, nil
}
