package gossiphttp

import (
	"context"
	"net/http"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/httpapi"
)

// ExchangePath is where members send their messages.
const ExchangePath = "/gossip/v1/exchange"

// ServeExchange serves the exchange operation for members with handle, which is [gossip.Node.Handle].
func ServeExchange(handle func(from string, body []byte) ([]byte, error), now func() time.Time) httpapi.Route {
	return exchange.Serve(func(_ context.Context, p access.Permit, m rawMessage) (encodedBody, error) {
		if err := p.Require(access.GossipExchange, now()); err != nil {
			return encodedBody{}, err
		}
		answer, err := handle(p.Caller().Device.ID, m.body)
		return encodedBody{"application/json", answer}, err
	})
}

// exchange is the operation that members call on each other.
var exchange = httpapi.Op[rawMessage, encodedBody]{Pattern: "POST " + ExchangePath, Verb: access.GossipExchange, Routine: true,
	Doc: "Exchange the state of all members between two access servers: a digest, and the signed records that the other server does not have."}

// rawMessage is an undecoded message. Package gossip decodes it itself, with bounds on what it keeps, and skips fields that a newer version
// added.
type rawMessage struct{ body []byte }

// ReadBody implements [httpapi.BodyReader]. It accepts any body; decoding reports the errors later.
func (s *rawMessage) ReadBody(body []byte) error {
	s.body = body
	return nil
}

// MaxBody implements [httpapi.BodyReader].
func (s *rawMessage) MaxBody() int { return gossip.MaxMessage }

// An encodedBody is a response that is sent as it is.
type encodedBody struct {
	contentType string
	body        []byte
}

// EncodeResponse implements [httpapi.Responder].
func (b encodedBody) EncodeResponse(string) (httpapi.Response, error) {
	return httpapi.Response{Status: http.StatusOK, ContentType: b.contentType, Body: b.body}, nil
}

// caPath is where members fetch the certificates of which a record has only the hash.
const caPath = "/gossip/v1/authority"

// fetchCA is the operation by which members fetch the CA certificates of a cluster's API server. The certificates are public, and the
// caller verifies them against the hash in a signed record.
var fetchCA = httpapi.Op[struct{}, encodedBody]{Pattern: "GET " + caPath, Verb: access.GossipExchange, Routine: true,
	Doc: "Get the CA certificates of this cluster's API server."}

// ServeCA serves the PEM certificates of this cluster's API server to members.
func ServeCA(pem []byte, now func() time.Time) httpapi.Route {
	return fetchCA.Serve(func(_ context.Context, p access.Permit, _ struct{}) (encodedBody, error) {
		if err := p.Require(access.GossipExchange, now()); err != nil {
			return encodedBody{}, err
		}
		return encodedBody{"application/x-pem-file", pem}, nil
	})
}
