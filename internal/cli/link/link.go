// Package link is the way to one access server: it asks, it waits, and it takes
// no answer that is not proved by the cluster's key. It keeps law 1 for the other
// side: a server is who proves it, whatever its name or certificate says.
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

// A Link is the way to one server, with what it answered last. One request at a
// time goes over it.
type Link struct {
	Base   string        // URL: scheme and host
	Limit  time.Duration // of the whole command, for sentences
	Last   Exchange
	client door.Client

	Key    door.PublicKey     // by which every answer must be proved; none: not yet known
	Listed bool               // the key is in the settings
	Source string             // the server that told the key; "": this machine knows it
	Info   signin.ClusterInfo // of the server's cluster, once it has proved that it is the one
	First  bool               // its key was not known before
	Denied *fault.Fault       // it says no more than that it refuses, with its proof if the key is known
}

// An Exchange is what is worth knowing of a request beside its body.
type Exchange struct {
	Reached bool // there was a connection
	Status  int
	Header  http.Header
	nonce   string
	host    string       // as the request named it
	body    bytes.Buffer // as far as it was read
}

// New makes the way to the server at base. Limit is the time limit of the
// command; agent is what the server is told of the program. It opens no
// connection yet.
func New(base string, limit time.Duration, agent string) *Link {
	return newLink(base, limit, agent, reach.Transport(base))
}

// Named is [New] for a server that another one named, at source, together with
// its key: it is looked for in the tailnet only.
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

// redirected is the target of a redirect, which is never followed: it would let
// whoever answers once choose who is asked next.
type redirected string

func (r redirected) Error() string { return fmt.Sprintf("a redirect to %.200q", string(r)) }

// An observer notes what a link answered.
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

// A tee is a body that is noted while it is read. Whoever reads it bounds it.
type tee struct {
	io.Reader
	io.Closer
}

// Call asks the server for op. Every error is a fault.
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
