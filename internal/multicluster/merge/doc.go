// Package merge merges the lists and watches of several clusters into one. It keeps law 7. A list is complete or it is
// an error. A watch contains only events of the clusters. A response names the clusters that are left out. A position
// that cannot be determined is expired, so that the client lists again.
//
// The package handles bytes, not HTTP. For each request the server creates a [Collection]. Its Fetch sends the client's
// request to a member, with the position parameters of that member:
//
//	c := &merge.Collection{
//		Members: members, Epoch: conf.Epoch, Width: conf.Width, Spread: true,
//		Hash: merge.CollectionHash(r.URL.Path, query.Get("labelSelector"), query.Get("fieldSelector")),
//		Bare: query.Get("includeObject") == "None",
//		Fetch: func(ctx context.Context, m merge.Member, a merge.MemberRequest) (*merge.Body, error) {
//			v := maps.Clone(query)
//			a.Set(v) // sets positions, limit and watch; keeps selectors
//			v.Set("includeObject", ...) // Metadata instead of None: rows need names
//			resp, err := clusters[m.Name].Get(ctx, path, v, accept) // if a.Names is set: JSON metadata lists
//			if err != nil {
//				return nil, err
//			}
//			format, ok := codec.ParseFormat(resp.Header.Get("Content-Type"))
//			if resp.StatusCode != 200 {
//				defer resp.Body.Close()
//				b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
//				return nil, codec.ParseStatus(b, format.Proto, resp.StatusCode)
//			}
//			format.Shape = shape // as requested by Accept; the Content-Type does not contain it
//			if a.Names {
//				format.Shape = codec.ShapeMetadata
//			}
//			return &merge.Body{ReadCloser: resp.Body, Format: format}, nil
//		},
//	}
//
// A list:
//
//	list, err := c.List(r.Context(), merge.ParseQuery(query, false))
//	if errors.Is(err, merge.ErrMixedFormats) {
//		// retry with a Fetch that accepts only JSON
//	}
//	if status, ok := errors.AsType[*codec.Status](err); ok {
//		// w.WriteHeader(status.Code), status.Append, Retry-After: status.RetryAfter
//	}
//	defer list.Close()
//	w.Header().Set("Content-Type", list.Format.MediaType(false)) // and a Warning for each of list.Skipped
//	if _, err := list.WriteTo(w); err != nil {
//		panic(http.ErrAbortHandler) // never a well-formed short list
//	}
//
// A watch. The Flush of an http.ResponseController also sends the headers:
//
//	watch, err := c.Watch(r.Context(), merge.ParseQuery(query, true), codec.Format{Proto: prefersProto})
//	// errors as above
//	watch.Timeout, watch.Drain, watch.OnMemberState = timeout, draining, report
//	w.Header().Set("Content-Type", watch.Format.MediaType(true))
//	err = watch.Run(r.Context(), &merge.FrameWriter{Out: w, Proto: watch.Format.Proto, FlushFunc: controller.Flush})
//
// If Run returns an error that is not a *codec.Status, the server must abort the connection. For a WebSocket, the server
// implements a [Sink] that sends each event as one message.
//
// A vector must never reach a cluster. The server must therefore pass a request for a collection of a single cluster
// through [Planner.SingleCluster], and a GET of one object through [Planner.ObjectVersion]. If another cluster held the
// collection before, the server uses a Collection with one member, so that its positions are vectors.
package merge
