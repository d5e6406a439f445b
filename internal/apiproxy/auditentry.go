package apiproxy

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/tailplane/tailplane/internal/util/sanitize"
)

// AuditStage is the stage of a request at which an audit record was written, as in audit.k8s.io.
type AuditStage string

// The stages. Each request has one record when it completes. A stream also has one when it begins.
const (
	StageReceived AuditStage = "RequestReceived" // for requests that must be recorded before they are forwarded
	StageStarted  AuditStage = "ResponseStarted"
	StageComplete AuditStage = "ResponseComplete"
	StagePanic    AuditStage = "Panic"
)

// auditEntry is one record of the audit log. It has no other data than these fields. Their names are those of
// audit.k8s.io/v1 where possible.
type auditEntry struct {
	Level          string          `json:"level"` // "Metadata"
	AuditID        string          `json:"auditID"`
	Stage          AuditStage      `json:"stage"`
	RequestURI     string          `json:"requestURI,omitempty"` // the path of a non-resource request, without its query
	Verb           string          `json:"verb"`
	UserAgent      string          `json:"userAgent,omitempty"`
	ObjectRef      *objectRef      `json:"objectRef,omitempty"`
	ResponseStatus *responseStatus `json:"responseStatus,omitempty"`
	Received       time.Time       `json:"requestReceivedTimestamp"`
	At             time.Time       `json:"stageTimestamp"`
	Clusters       []string        `json:"clusters,omitempty"`
	Rule           string          `json:"rule,omitempty"`
	Duration       *float64        `json:"durationMs,omitempty"`
	Bytes          *int64          `json:"bytes,omitempty"` // of the response; of an upgrade in both directions
	TraceID        string          `json:"traceID,omitempty"`
}

type objectRef struct {
	Resource    string `json:"resource,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name,omitempty"`
	APIGroup    string `json:"apiGroup,omitempty"`
	APIVersion  string `json:"apiVersion,omitempty"`
	Subresource string `json:"subresource,omitempty"`
}

type responseStatus struct {
	Code    int    `json:"code"`
	Status  string `json:"status,omitempty"` // "Failure"
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// auditLine encodes a record. The result is always exactly one line, whatever text a client sent.
func (v *RequestTelemetry) auditLine(stage AuditStage, now time.Time, out *Result) []byte {
	e := auditEntry{
		Level: "Metadata", AuditID: v.auditID, Stage: stage, Verb: v.verb(), UserAgent: Sanitize(v.r.UserAgent()),
		Received: v.began.UTC(), At: now.UTC(), Clusters: v.clusters, Rule: v.rule, TraceID: spanTraceID(v.span),
	}
	switch req := v.req; {
	case req == nil:
		e.RequestURI = Sanitize(v.r.URL.EscapedPath())
	case req.NonResource:
		e.RequestURI = Sanitize(req.Path)
	default:
		e.ObjectRef = &objectRef{
			Sanitize(req.Resource),
			Sanitize(req.Namespace),
			Sanitize(req.Name),
			Sanitize(req.Group),
			Sanitize(req.Version),
			Sanitize(req.Subresource),
		}
	}
	if out != nil && out.Code != 0 {
		e.ResponseStatus = &responseStatus{Code: out.Code, Reason: Sanitize(out.Reason), Message: Sanitize(out.Message)}
		if out.Code >= http.StatusBadRequest {
			e.ResponseStatus.Status = "Failure"
		}
	}
	if out != nil && stage != StageStarted {
		e.Duration, e.Bytes = new(float64(now.Sub(v.began).Microseconds())/1000), new(out.Bytes)
	}
	return encodeLine(e)
}

// verb returns the Kubernetes verb, or the HTTP method if the request could not be parsed.
func (v *RequestTelemetry) verb() string {
	if v.req != nil {
		return Sanitize(v.req.Verb)
	}
	return Sanitize(v.r.Method)
}

func encodeLine(line any) []byte {
	b, err := json.Marshal(line)
	if err != nil {
		panic("apiproxy: " + err.Error()) // only for a time outside the years 0 to 9999
	}
	return append(sanitize.JSON(b), '\n')
}
