// Draws the tasks that are in view. Of 100,000 tasks most are narrower than a pixel: neighbours on one worker that lie
// within the same pixel and a half become one box, so a view has at most a box for each pixel of each worker and phase.
// Start and end of the view change one after the other; both are drawn at once.
if (labels.tags.length) return
labels.tags = ["drawing"]
requestAnimationFrame(() => { labels.tags = []; draw() })

function draw() {
  const low = plot.x_range.start, high = plot.x_range.end
  const pixel = 1.5 * (high - low) / Math.max(plot.inner_width, 1)
  const words = (part, i) => {
    const {operation, step, sub_batch, layer, left, right, critical} = part
    const sub = sub_batch[i] < 0 ? '' : `, sub-batch ${sub_batch[i]}`, at = layer[i] < 0 ? '' : `, layer ${layer[i]}`
    return `${operation[i]}: step ${step[i]}${sub}${at}; ${left[i].toFixed(3)} to ${right[i].toFixed(3)} ms`
      + (critical[i] ? '; on the critical path' : '')
  }
  const onPath = {left: [], right: [], top: [], bottom: []}, names = {x: [], y: [], text: []}
  for (const {every, drawn} of parts) {
    const part = every.data, {left, right, row, critical, operation} = part
    const boxes = {left: [], right: [], top: [], bottom: [], text: []}
    const last = new Map()  // for each worker its box that the next task may join, and the number of tasks in it
    for (let i = 0; i < left.length; i++) {
      if (left[i] > high) break  // tasks are in the order of their start
      if (right[i] < low) continue
      const open = last.get(row[i])
      if (open && right[i] - boxes.left[open.box] < pixel) {
        boxes.right[open.box] = Math.max(boxes.right[open.box], right[i])
        boxes.text[open.box] = `${++open.count} tasks: zoom in`
      } else {
        last.set(row[i], {box: boxes.left.length, count: 1})
        boxes.left.push(left[i])
        boxes.right.push(right[i])
        boxes.top.push(row[i] - 0.4)
        boxes.bottom.push(row[i] + 0.4)
        boxes.text.push(i)
      }
      if (critical[i]) {
        const end = onPath.right.length - 1
        if (end >= 0 && onPath.bottom[end] === row[i] + 0.4 && right[i] - onPath.left[end] < pixel) {
          onPath.right[end] = Math.max(onPath.right[end], right[i])
        } else {
          onPath.left.push(left[i])
          onPath.right.push(right[i])
          onPath.top.push(row[i] + 0.2)
          onPath.bottom.push(row[i] + 0.4)
        }
      }
      const begin = Math.max(left[i], low), room = Math.floor((Math.min(right[i], high) - begin) / pixel / 5) - 1
      if (room >= 4 && names.x.length <= most_names) {
        names.x.push(begin + 4 * pixel)
        names.y.push(row[i])
        names.text.push(operation[i].length > room ? operation[i].slice(0, room - 1) + '…' : operation[i])
      }
    }
    if (!boxes.left.length) {  // the legend shows the colour of a phase only if it has a box
      for (const edge of ['left', 'right', 'top', 'bottom', 'text']) boxes[edge].push(NaN)
    }
    const few = boxes.text.length <= most_texts
    boxes.text = boxes.text.map((text) => {
      return typeof text === 'string' || isNaN(text) ? `${text}` : few ? words(part, text) : operation[text]
    })
    drawn.data = boxes
  }
  path.data = onPath
  labels.data = names
}
