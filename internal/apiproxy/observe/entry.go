package observe

import (
	"encoding/json"
	"net/http"
	"time"
)

// A Stage is when in a visit a line was written, in the words of audit.k8s.io.
type Stage string

// The stages. One line is written for a visit, when it is complete; a stream has
// one when it begins too. Gap is our own: lines were lost here.
const (
	StageReceived Stage = "RequestReceived" // of what may not go unrecorded, before it is sent on
	StageStarted  Stage = "ResponseStarted"
	StageComplete Stage = "ResponseComplete"
	StagePanic    Stage = "Panic"
	StageGap      Stage = "Gap"
)

// An entry is one line of the record. Its fields are the whole of it: names are
// those of audit.k8s.io/v1 where it has one.
type entry struct {
	Level          string          `json:"level"` // "Metadata"
	AuditID        string          `json:"auditID"`
	Stage          Stage           `json:"stage"`
	RequestURI     string          `json:"requestURI,omitempty"` // the path of what is no resource, without query
	Verb           string          `json:"verb"`
	UserAgent      string          `json:"userAgent,omitempty"`
	ObjectRef      *objectRef      `json:"objectRef,omitempty"`
	ResponseStatus *responseStatus `json:"responseStatus,omitempty"`
	Received       time.Time       `json:"requestReceivedTimestamp"`
	At             time.Time       `json:"stageTimestamp"`
	Clusters       []string        `json:"clusters,omitempty"`
	Rule           string          `json:"rule,omitempty"`
	Duration       *float64        `json:"durationMs,omitempty"`
	Bytes          *int64          `json:"bytes,omitempty"` // of the answer; of an upgrade both ways
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

// A gap is a line that says how many are missing.
type gap struct {
	Stage Stage     `json:"stage"`
	At    time.Time `json:"stageTimestamp"`
	Lost  int64     `json:"lost"`
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
}

// line returns the entry as it is written: one line, whatever a stranger put in.
func (v *Visit) line(stage Stage, now time.Time, out *Outcome) []byte {
	e := entry{
		Level: "Metadata", AuditID: v.auditID, Stage: stage, Verb: v.verb(), UserAgent: clean(v.r.UserAgent()),
		Received: v.began.UTC(), At: now.UTC(), Clusters: v.clusters, Rule: v.rule, TraceID: traceID(v.span),
	}
	switch req := v.req; {
	case req == nil:
		e.RequestURI = clean(v.r.URL.EscapedPath())
	case req.NonResource:
		e.RequestURI = clean(req.Path)
	default:
		e.ObjectRef = &objectRef{clean(req.Resource), clean(req.Namespace), clean(req.Name), clean(req.Group), clean(req.Version), clean(req.Subresource)}
	}
	if out != nil && out.Code != 0 {
		e.ResponseStatus = &responseStatus{Code: out.Code, Reason: clean(out.Reason), Message: clean(out.Message)}
		if out.Code >= http.StatusBadRequest {
			e.ResponseStatus.Status = "Failure"
		}
	}
	if out != nil && stage != StageStarted {
		e.Duration, e.Bytes = new(float64(now.Sub(v.began).Microseconds())/1000), new(out.Bytes)
	}
	return encode(e)
}

// verb returns what was asked for: a word of Kubernetes', or of a request that
// could not be read, the method.
func (v *Visit) verb() string {
	if v.req != nil {
		return clean(v.req.Verb)
	}
	return clean(v.r.Method)
}

func encode(line any) []byte {
	b, err := json.Marshal(line)
	if err != nil {
		panic("observe: " + err.Error()) // a time outside the years 0 to 9999
	}
	return append(escape(b), '\n')
}
