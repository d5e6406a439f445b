// Package connections has the operations with which an access proxy lists and cuts its open streams. It is a package of
// its own because tka and the plane call them, and must not link the proxy.
//
// The proxy serves them on the listener of the Kubernetes API, under [Prefix], which no API server serves: a caller needs
// no other port of the tailnet policy, and no other name or certificate.
package connections

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// Prefix is the prefix of the proxy's own paths. API servers serve API groups under /apis only.
const Prefix = "/tailplane.dev/"

// The limits of a list.
const (
	DefaultLimit = 500
	maxLimit     = 1000
)

// A Stream is an open stream: a watch, a followed log, or an upgraded connection. All texts are data of other people.
type Stream struct {
	ID        string    `json:"id" doc:"audit id of its request"`
	Kind      string    `json:"kind" enum:"watch,log,exec,attach,portforward,proxy"`
	Login     string    `json:"login" doc:"the person; of a tagged device: its name"`
	Tailnet   string    `json:"tailnet" doc:"tailnet of the login"`
	Device    string    `json:"device"`
	Session   string    `json:"session" doc:"empty: the default session"`
	Signin    string    `json:"signin" doc:"name of the sign-in"`
	Group     string    `json:"group" doc:"API group of the resource; empty: the core group"`
	Resource  string    `json:"resource" doc:"the resource, with its subresource"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Since     time.Time `json:"since"`
	Bytes     int64     `json:"bytes" doc:"bytes in both directions so far, without headers"`
	Recording string    `json:"recording" doc:"id of its recording; empty: it is not recorded"`
}

// Limit is the largest number of streams of a list, 1 to 1000.
type Limit int

// MarshalText implements [encoding.TextMarshaler].
func (l Limit) MarshalText() ([]byte, error) {
	if l == 0 {
		return nil, nil
	}
	return strconv.AppendInt(nil, int64(l), 10), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (l *Limit) UnmarshalText(b []byte) error {
	n, err := strconv.Atoi(string(b))
	if err != nil || n < 1 || n > maxLimit {
		return fmt.Errorf("%.20q is not a number from 1 to %d", b, maxLimit)
	}
	*l = Limit(n)
	return nil
}

// Text is a parameter of a query.
type Text string

// MarshalText implements [encoding.TextMarshaler].
func (t Text) MarshalText() ([]byte, error) { return []byte(t), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (t *Text) UnmarshalText(b []byte) error {
	*t = Text(b)
	return nil
}

// ListRequest selects streams.
type ListRequest struct {
	Login Text  `json:"-" query:"login" doc:"only streams of this login"`
	ID    Text  `json:"-" query:"id" doc:"only this stream"`
	Limit Limit `json:"-" query:"limit" doc:"most streams to return; default 500"`
}

// List is the answer: the oldest streams first.
type List struct {
	Cluster string   `json:"cluster"`
	Streams []Stream `json:"streams"`
	LeftOff int      `json:"leftOff" doc:"streams that the limit left off"`
	Idle    int      `json:"idle" doc:"open connections of these callers without a stream"`
}

// CutRequest ends one stream.
type CutRequest struct {
	ID     string `json:"-" path:"id"`
	Reason string `json:"reason" doc:"why, 1 to 200 characters; the person whose stream it is reads it"`
	For    string `json:"for,omitempty" doc:"the person who asked the plane; only the plane may set it"`
}

// AuditArgs implements [httpapi.AuditArguer].
func (r CutRequest) AuditArgs() map[string]string {
	return map[string]string{"stream": r.ID, "reason": r.Reason}
}

// Check returns a problem if the reason is empty, too long or has more than one line.
func (r CutRequest) Check() error {
	n := utf8.RuneCountInString(r.Reason)
	switch {
	case strings.TrimSpace(r.Reason) == "":
		return problem.New(problem.BadRequest, "A reason is required.", "Give the reason in one sentence. The person whose stream ends reads it.")
	case n > 200 || !utf8.ValidString(r.Reason):
		return problem.New(problem.BadRequest, fmt.Sprintf("The reason has %d characters; the limit is 200.", n))
	case strings.ContainsFunc(r.Reason+r.For, unicode.IsControl) || len(r.For) > 320:
		return problem.New(problem.BadRequest, "The reason contains a control character.", "Write it in one line.")
	}
	return nil
}

// Cut is the result: the stream that ends now. Its client reads the reason within two seconds.
type Cut struct {
	Stream Stream `json:"stream"`

	Via string `json:"-"` // "plane" if the plane asked for a person
	For string `json:"-"` // that person
}

// AuditObject implements [httpapi.AuditNamer].
func (c Cut) AuditObject() string { return c.Stream.Signin }

// AuditDetails implements [httpapi.AuditDetailer].
func (c Cut) AuditDetails() map[string]string {
	d := map[string]string{"login": c.Stream.Login, "kind": c.Stream.Kind}
	if c.Via != "" {
		d["via"], d["for"] = c.Via, c.For
	}
	return d
}

// The operations of an access proxy. A person lists and cuts its own streams, and the plane those of all.
var (
	ListStreams = httpapi.Op[ListRequest, List]{Pattern: "GET " + Prefix + "v1/connections", Verb: access.ConnectionsRead, MaxResponse: 4 << 20,
		Doc: "List the open streams of the caller; for the plane: of all callers."}
	CutStream = httpapi.Op[CutRequest, Cut]{Pattern: "POST " + Prefix + "v1/connections/{id}/cut", Verb: access.ConnectionsCut,
		Doc: "End one stream of the caller; for the plane: of any caller. Its client receives the reason."}
)
