package plane

import (
	"context"
	_ "embed"
	"net/http"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
)

// document is the OpenAPI description of the operations. "go generate ./internal/httpapi/openapi" writes it from them, and a test compares the
// two.
//
//go:embed openapi.json
var document []byte

// Document is the OpenAPI 3.1 description of the API. The server sends it without an envelope.
type Document struct{}

// EncodeResponse implements [httpapi.Responder].
func (Document) EncodeResponse(string) (httpapi.Response, error) {
	return httpapi.Response{Status: http.StatusOK, ContentType: "application/json", Body: document}, nil
}

// Forms returns the media type of the document, for the generated reference.
func (Document) Forms() map[string]any {
	return map[string]any{"application/json": map[string]any{}}
}

func getDocument(context.Context, access.Permit, Empty) (Document, error) { return Document{}, nil }

// EventStream is an example of an event stream, for the generated reference.
type EventStream struct{}

// EncodeResponse implements [httpapi.Responder]. Only the reference uses it; no request receives it as its response.
func (EventStream) EncodeResponse(string) (httpapi.Response, error) {
	return httpapi.Response{Status: http.StatusOK, ContentType: "text/event-stream", Body: `retry: 2000

event: hello
data: {"serverTime":"2026-11-22T11:41:08Z","revision":"1795347668000000","heartbeatSeconds":15}

id: 1795347668000000
event: snapshot
data: {"revision":"1795347668000000","objects":{"cluster":[],"signin":null},"sources":[]}

id: 1795347668000001
event: signin.delete
data: {"id":"tailplane/alice-example-com-0f3c9a1b2d4e5f607182"}

id: 1795347668000002
event: source.status
data: {"name":"kubernetes","status":"down","since":"2026-11-22T11:41:08Z","message":"connection refused"}

event: bye
data: {"reason":"not_authorized_user"}
`}, nil
}

// Forms returns the events of the stream, for the generated reference.
func (EventStream) Forms() map[string]any {
	data := map[string]any{"hello": Hello{}, "snapshot": Snapshot{}, "source.status": Source{}, "audit.append": audit.Entry{},
		"heartbeat": Heartbeat{}, "resync": Notice{}, "bye": Notice{}}
	for _, f := range kindForms() {
		data[string(f.kind)+".upsert"], data[string(f.kind)+".delete"] = f.object, DeletedObject{}
	}
	return map[string]any{"text/event-stream": httpapi.EventForms{Name: "StreamEvent", Data: data}}
}

// kindForm has the form of the objects of a kind, and of lists of them.
type kindForm struct {
	kind         Kind
	object, list any
}

func formOf[T Object](of table[T]) kindForm { return kindForm{of.Kind, *new(T), []T{}} }

func kindForms() []kindForm {
	return []kindForm{formOf(clusters()), formOf(signins()), formOf(tailnets()), formOf(gateways()), formOf(routes()), formOf(proxyGroups()), formOf(adapters()),
		formOf(pools()), formOf(enrollments()), formOf(holds()), formOf(forges()), formOf(changes()), formOf(drifts()), formOf(runners())}
}
