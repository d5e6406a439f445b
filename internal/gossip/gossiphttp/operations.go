package gossiphttp

import (
	"context"
	"net/http"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/gossip"
)

// ExchangePath is where members send their messages.
const ExchangePath = "/gossip/v1/exchange"

// ServeExchange serves the exchange operation for members with handle, which is [gossip.Node.Handle].
func ServeExchange(handle func(from string, body []byte) ([]byte, error), now func() time.Time) door.Route {
	return exchange.Serve(func(_ context.Context, p access.Permit, m sent) (reply, error) {
		if err := p.Require(access.GossipExchange, now()); err != nil {
			return nil, err
		}
		return handle(p.Caller().Device.ID, m.body)
	})
}

// exchange is the operation that members call on each other.
var exchange = door.Op[sent, reply]{Pattern: "POST " + ExchangePath, Verb: access.GossipExchange, Routine: true,
	Doc: "Exchange what two access servers know of all: a digest, and the signed records that the other lacks."}

// sent is an undecoded message. Package gossip decodes it itself, with bounds on what it keeps, and skips fields that a newer version
// added.
type sent struct{ body []byte }

// ReadBody implements [door.Wire]. It accepts any body; decoding reports the errors later.
func (s *sent) ReadBody(body []byte) error {
	s.body = body
	return nil
}

// MaxBody implements [door.Wire].
func (s *sent) MaxBody() int { return gossip.MaxMessage }

// A reply is an encoded message.
type reply []byte

// Shape implements [door.Shaped].
func (r reply) Shape(string) (door.Shape, error) {
	return door.Shape{Status: http.StatusOK, ContentType: "application/json", Body: []byte(r)}, nil
}

// authorityPath is where members fetch the certificates of which a record has only the hash.
const authorityPath = "/gossip/v1/authority"

// authority is the operation by which members fetch the CA certificates of a cluster's API server. The certificates are public, and the
// caller verifies them against the hash in a signed record.
var authority = door.Op[struct{}, certificates]{Pattern: "GET " + authorityPath, Verb: access.GossipExchange, Routine: true,
	Doc: "Get the certificate authority of this cluster's API server."}

// certificates are PEM.
type certificates []byte

// Shape implements [door.Shaped].
func (c certificates) Shape(string) (door.Shape, error) {
	return door.Shape{Status: http.StatusOK, ContentType: "application/x-pem-file", Body: []byte(c)}, nil
}

// ServeAuthority serves the PEM certificates of this cluster's API server to members.
func ServeAuthority(pem []byte, now func() time.Time) door.Route {
	return authority.Serve(func(_ context.Context, p access.Permit, _ struct{}) (certificates, error) {
		if err := p.Require(access.GossipExchange, now()); err != nil {
			return nil, err
		}
		return pem, nil
	})
}
