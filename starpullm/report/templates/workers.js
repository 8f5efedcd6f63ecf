// Draws the timeline of each recorded run on a canvas, as often as its view or its size changes.
for (const figure of document.querySelectorAll("figure.workers")) drawTimeline(figure)

function drawTimeline(figure) {
  const run = JSON.parse(figure.querySelector("script").textContent)
  const canvas = figure.querySelector("canvas"), told = figure.querySelector(".told"), paint = canvas.getContext("2d")
  const left = 120, right = 12, pitch = 34, height = 26, axis = 34
  const whole = run.end.reduce((latest, end) => Math.max(latest, end), 1)
  let low = 0, high = whole
  const width = () => Math.max(canvas.clientWidth - left - right, 1)
  const place = (time) => left + (time - low) / (high - low) * width()
  const milliseconds = (time) => (time * 1e-6).toFixed(3)

  function draw() {
    const ratio = window.devicePixelRatio || 1, style = getComputedStyle(document.documentElement)
    const colour = (name) => style.getPropertyValue(name).trim()
    canvas.style.height = `${run.rows.length * pitch + axis}px`
    canvas.width = canvas.clientWidth * ratio
    canvas.height = canvas.clientHeight * ratio
    paint.setTransform(ratio, 0, 0, ratio, 0, 0)
    paint.font = "12px system-ui, sans-serif"
    paint.textBaseline = "middle"
    // A dark page is printed on white paper, but the canvas stays as it is: so it has the page's background.
    paint.fillStyle = colour("--page")
    paint.fillRect(0, 0, canvas.clientWidth, canvas.clientHeight)
    drawRows(colour)
    paint.save()
    paint.beginPath()
    paint.rect(left, 0, width(), run.rows.length * pitch)
    paint.clip()
    const inView = drawTasks()
    paint.restore()
    told.textContent = `${milliseconds(low)} to ${milliseconds(high)} ms: ${inView.toLocaleString("en")} tasks`
  }

  function drawRows(colour) {
    run.rows.forEach((name, row) => {
      paint.fillStyle = colour("--text")
      paint.textAlign = "right"
      paint.fillText(name, left - 8, row * pitch + pitch / 2)
      paint.fillStyle = colour("--panel")
      paint.fillRect(left, row * pitch + (pitch - height) / 2, width(), height)
    })
    const about = (high - low) / 8, power = 10 ** Math.floor(Math.log10(about))
    const step = [1, 2, 5, 10].map((of) => of * power).find((of) => of >= about)
    paint.fillStyle = colour("--text")
    paint.textAlign = "center"
    for (let at = Math.ceil(low / step) * step; at <= high; at += step) {
      const bottom = run.rows.length * pitch
      paint.fillRect(place(at), bottom, 1, 5)
      paint.fillText(`${+(at * 1e-6).toPrecision(6)} ms`, place(at), bottom + 16)
    }
  }

  // Tasks are in the order of their start. One that ends within the last pixel of its worker isn't seen.
  function drawTasks() {
    const until = run.rows.map(() => -1)
    let inView = 0
    paint.textAlign = "left"
    for (let i = 0; i < run.start.length && run.start[i] <= high; i++) {
      if (run.end[i] < low) continue
      inView++
      const row = run.row[i], from = Math.max(place(run.start[i]), left), to = place(run.end[i])
      if (to < until[row] + 0.5) continue
      until[row] = to
      const top = row * pitch + (pitch - height) / 2, wide = Math.max(to - from, 0.75)
      paint.fillStyle = run.colours[run.operation[i]]
      paint.fillRect(from, top, wide > 3 ? wide - 0.5 : wide, height)
      paint.fillStyle = "#000000"
      if (run.critical[i]) paint.fillRect(from, top + height - 8, wide, 4)
      const room = Math.floor((Math.min(to, left + width()) - from - 6) / 7), name = run.operations[run.operation[i]]
      if (room >= 4) paint.fillText(name.length > room ? `${name.slice(0, room - 1)}…` : name, from + 4, top + 11)
    }
    return inView
  }

  function show(from, to) {
    const span = Math.min(Math.max(to - from, 100), whole)
    low = Math.min(Math.max(from, 0), whole - span)
    high = low + span
    draw()
  }

  for (const button of figure.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      const span = high - low, {zoom, move} = button.dataset
      if (zoom === "all") show(0, whole)
      else if (zoom) show(low + span / 2 - span * zoom / 2, low + span / 2 + span * zoom / 2)
      else show(low + span * move, high + span * move)
    })
  }
  new ResizeObserver(draw).observe(canvas)
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw)
  draw()
}
