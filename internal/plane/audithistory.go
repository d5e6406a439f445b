package plane

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/accept"
)

// maxRead is the maximum number of audit entries that one request reads. If a page ends at this limit, its cursor continues there.
const maxRead = 100_000

// HistoryRequest selects entries of the audit log, newest first.
type HistoryRequest struct {
	Since  QueryTime `json:"-" query:"since" doc:"only entries from this time on, RFC 3339"`
	Actor  Text      `json:"-" query:"actor" doc:"only entries of this login, or of the node with this name or id"`
	Org    Text      `json:"-" query:"org" doc:"only entries about this organisation"`
	Verb   Text      `json:"-" query:"verb" doc:"only entries with this verb"`
	Result Text      `json:"-" query:"result" doc:"only entries with this result: done, notYet, refused or failed"`
	Quiet  Flag      `json:"-" query:"quiet" doc:"true omits permitted reads; reads of runner logs stay"`
	Limit  PageLimit `json:"-" query:"limit" doc:"maximum number of entries, 1 to 500 (default 100)"`
	Cursor Cursor    `json:"-" query:"cursor" doc:"meta.page.next of the previous page, with the same other parameters"`
}

// SetLimit sets the maximum number of entries.
func (r *HistoryRequest) SetLimit(n int) { r.Limit = PageLimit(n) }

// QueryTime is a time parameter.
type QueryTime time.Time

// MarshalText implements [encoding.TextMarshaler].
func (m QueryTime) MarshalText() ([]byte, error) {
	if time.Time(m).IsZero() {
		return nil, nil
	}
	return []byte(time.Time(m).UTC().Format(time.RFC3339Nano)), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (m *QueryTime) UnmarshalText(b []byte) error {
	t, err := time.Parse(time.RFC3339, string(b))
	if err != nil {
		return fmt.Errorf("%.40q is not a time such as 2026-01-02T15:04:05Z", b)
	}
	*m = QueryTime(t)
	return nil
}

// History is a page of the audit log. A client that accepts application/jsonl receives one line per entry.
type History struct{ Envelope[[]audit.Entry] }

// NextHeader carries the cursor of the next page when the response is lines.
const NextHeader = "Tailplane-Next-Cursor"

// WithAuditID implements [httpapi.AuditIdentifiable].
func (h History) WithAuditID(id string) any {
	h.Meta.RequestID = id
	return h
}

// EncodeResponse implements [httpapi.Responder].
func (h History) EncodeResponse(header string) (httpapi.Response, error) {
	if !accept.Includes([]string{"application/jsonl", "application/x-ndjson"}, header) {
		return httpapi.Response{Status: http.StatusOK, Body: h.Envelope}, nil
	}
	var text bytes.Buffer
	for _, e := range h.Data {
		text.Write(encode(e))
		text.WriteByte('\n')
	}
	shape := httpapi.Response{Status: http.StatusOK, ContentType: "application/jsonl", Body: text.Bytes(), Header: http.Header{}}
	if h.Meta.Page != nil && h.Meta.Page.Next != "" {
		shape.Header.Set(NextHeader, h.Meta.Page.Next)
	}
	return shape, nil
}

// Forms returns the response by media type, for the generated reference.
func (h History) Forms() map[string]any {
	return map[string]any{"application/json": h, "application/jsonl": audit.Entry{}}
}

// listAudit returns the audit entries that the caller may read: its own, those about organisations that it administers, or all. The page has
// no total, because counting would read the whole log.
func (d *Service) listAudit(ctx context.Context, p access.Permit, req HistoryRequest) (History, error) {
	results := []audit.Result{audit.Done, audit.NotYet, audit.Refused, audit.Failed}
	if req.Result != "" && !slices.Contains(results, audit.Result(req.Result)) {
		return History{}, invalidField("result", fmt.Sprintf("%.40q is not a valid result.", string(req.Result)), "Use done, notYet, refused or failed.")
	}
	limit := cmp.Or(int(req.Limit), defaultLimit)
	requested := listCursor{Kind: "audit", Q: string(encode([]any{req.Since, req.Actor, req.Org, req.Verb, req.Result, req.Quiet}))}
	before := ""
	if req.Cursor != "" {
		at, err := parseCursor(string(req.Cursor), requested)
		if err != nil {
			return History{}, problem.New(problem.BadRequest, "The cursor is not valid for this list: "+err.Error()+".", "Request the first page, without a cursor.")
		}
		before = at.ID
	}
	v := ViewerOf(p)
	page := Page{Limit: limit}
	entries, read, last := []audit.Entry{}, 0, ""
	skipping := before != ""
	damaged, err := d.AuditEntries(ctx, func(e AuditEntry) bool {
		at := strconv.FormatUint(e.Seq, 10) + " " + e.RequestID
		if skipping {
			skipping = at != before
			return true
		}
		if time.Time(req.Since).After(e.Time) && e.Time.Before(time.Time(req.Since).Add(-time.Hour)) {
			return false // entries are in the order in which requests end, which is close to time order; the hour covers the difference
		}
		if len(entries) == limit || read == maxRead {
			requested.ID = last
			page.Next = requested.String()
			return false
		}
		read++
		last = at
		if v.seesEntry(e.Entry) && req.matches(e.Entry) {
			entries = append(entries, e.Entry)
		}
		return true
	})
	if err != nil {
		return History{}, problem.New(problem.Unavailable, "The audit log cannot be read.", "Try again. If the error persists, contact the administrator of this server.").WithRetryAfter(time.Second).WithCause(err)
	}
	if skipping {
		return History{}, problem.New(problem.BadRequest, "The audit log no longer contains the entry at the cursor.", "Request the first page, without a cursor.")
	}
	source := Source{Name: "audit", Status: StatusOK, ObservedAt: d.Now().UTC(), Since: d.Now().UTC()}
	if damaged > 0 {
		source.Status, source.Message = StatusDegraded, fmt.Sprintf("The audit log has %s that cannot be verified; the list omits them. Run: tka audit verify", problem.Plural(damaged, "line"))
	}
	h := History{newEnvelope(d, "AuditEntryList", entries, d.Store.Revision(), []Source{source})}
	h.Meta.Page = &page
	return h, nil
}

// seesEntry reports whether the caller may read e.
func (v Viewer) seesEntry(e audit.Entry) bool {
	switch {
	case v.Everywhere(access.AuditReadAll), e.Org != "" && v.In(e.Org, access.AuditRead):
		return true
	case !v.Own(access.AuditRead) && !v.Everywhere(access.AuditRead):
		return false
	case v.caller.Tagged() || v.caller.Shared: // another caller may have the same login, so only the node counts
		return e.Actor.NodeID != "" && e.Actor.NodeID == v.caller.Device.ID
	}
	if e.Actor.UserID != "" && v.caller.UserID != "" && e.Actor.UserID != v.caller.UserID {
		return false // an earlier user had the login
	}
	return e.Actor.Login != "" && e.Actor.Login == string(v.caller.Login)
}

func (r HistoryRequest) matches(e audit.Entry) bool {
	actor, looked := string(r.Actor), strings.HasSuffix(string(e.Verb), ".read") && e.Verb != access.LogsRead && e.Result == audit.Done
	return !(looked && bool(r.Quiet)) && (time.Time(r.Since).IsZero() || !e.Time.Before(time.Time(r.Since))) &&
		(actor == "" || e.Actor.Login == actor || e.Actor.Node == actor || e.Actor.NodeID == actor) &&
		(r.Org == "" || e.Org == string(r.Org)) && (r.Verb == "" || string(e.Verb) == string(r.Verb)) && (r.Result == "" || string(e.Result) == string(r.Result))
}
