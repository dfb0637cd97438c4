"""Draws figures of evaluate.py (--json) as an SVG: one line for each file, one panel for each row.

  python3 plot.py out.svg NAME=FILE.json ...      rows `facts` and `alone`: the whiteboard's plot"""
import json
import sys

W, H, LEFT, TOP, GAP = 380, 260, 60, 40, 70
DASHES = ('', '8 3', '2 3', '10 3 2 3', '5 5', '1 5')        # to be told apart in black and white
COLOURS = ('#000000', '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#7a5c00')
TITLES = dict(facts=('Facts told one after the other, one asked', 'facts'),
              alone=('One fact, small talk, the question', 'tokens between telling and asking'))


def panel(row, series, x0):
    """One plot; the x axis has the measured places at equal distances."""
    title, axis = TITLES[row]
    places = sorted({f['distance'] for _, fs in series for f in fs if f['row'] == row})
    x = lambda d: x0 + places.index(d) * W / (len(places) - 1)
    y = lambda v: TOP + H * (1 - v)
    out = [f'<text x="{x0 + W / 2}" y="{TOP - 14}" text-anchor="middle" font-weight="bold">{title}</text>',
           f'<text x="{x0 + W / 2}" y="{TOP + H + 38}" text-anchor="middle">{axis}</text>']
    for v in (0, 0.25, 0.5, 0.75, 1):
        out += [f'<line x1="{x0}" x2="{x0 + W}" y1="{y(v)}" y2="{y(v)}" stroke="#ccc"/>',
                f'<text x="{x0 - 6}" y="{y(v) + 4}" text-anchor="end">{100 * v:.0f} %</text>']
    out += [f'<text x="{x(d)}" y="{TOP + H + 18}" text-anchor="middle">{d}</text>' for d in places]
    for i, (_, fs) in enumerate(series):
        points = ' '.join(f'{x(f["distance"]):.1f},{y(f["accuracy"]):.1f}' for f in fs if f['row'] == row)
        out.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[i]}" stroke-width="2" stroke-dasharray="{DASHES[i]}"/>')
    return out


def main():
    series = []
    for arg in sys.argv[2:]:
        name, path = arg.split('=', 1)
        with open(path) as f:
            series.append((name, json.load(f)['recall']))
    wide, high = LEFT + 2 * W + GAP + 150, TOP + H + 50
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="12">',
           f'<rect width="{wide}" height="{high}" fill="white"/>']
    for i, row in enumerate(('alone', 'facts')):
        out += panel(row, series, LEFT + i * (W + GAP))
    for i, (name, _) in enumerate(series):
        x, y = LEFT + 2 * W + GAP + 20, TOP + 20 * i + 10
        out += [f'<line x1="{x}" x2="{x + 30}" y1="{y}" y2="{y}" stroke="{COLOURS[i]}" stroke-width="2" stroke-dasharray="{DASHES[i]}"/>',
                f'<text x="{x + 36}" y="{y + 4}">{name}</text>']
    with open(sys.argv[1], 'w') as f:
        f.write('\n'.join(out + ['</svg>', '']))


if __name__ == '__main__':
    main()
